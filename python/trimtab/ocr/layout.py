"""Puts recognised pieces of text into reading order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """One recognised piece of text and its bounding box in pixels."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def reading_order(pieces: list[Piece]) -> str:
    """Pieces whose middles lie within half a line's height of each other form one line, left to right."""
    lines: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda p: (p.middle, p.left)):
        last = lines[-1] if lines else None
        if last and piece.middle - last[0].middle < 0.5 * (last[0].bottom - last[0].top):
            last.append(piece)
        else:
            lines.append([piece])
    return "\n".join(" ".join(p.text for p in sorted(line, key=lambda p: p.left)) for line in lines)
