"""The OCR worker's own decisions: reading order, which images it refuses, and its protocol."""

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "python" / "trimtab" / "ocr"


def load(name: str):
    """Loads a module of the worker without the package around it, whose binding need not be built for this."""
    full = f"trimtab.ocr.{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


layout = load("layout")
worker = load("worker")


def piece(text, left, top, height=20.0):
    return layout.Piece(text, left, top, left + 10, top + height)


def test_pieces_of_one_line_are_read_left_to_right_and_lines_top_to_bottom():
    pieces = [piece("world", 60, 12), piece("second", 0, 40), piece("hello", 0, 10), piece("line", 50, 44)]
    assert layout.reading_order(pieces) == "hello world\nsecond line"
    assert layout.reading_order([]) == ""


def save(tmp_path, size=(40, 30), kind="PNG", mode="RGB"):
    image_module = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    path = tmp_path / f"image.{kind.lower()}"
    image_module.new(mode, size).save(path, kind)
    return str(path)


def test_images_are_decoded_upright_and_on_white(tmp_path):
    pytest.importorskip("numpy")
    pixels = worker.load_image(save(tmp_path, mode="RGBA"), "image/png", 10_000)
    assert pixels.shape == (30, 40, 3)
    assert int(pixels.min()) == 255  # fully transparent is white
    assert worker.load_image(save(tmp_path, kind="JPEG"), "image/jpeg", 10_000).shape == (30, 40, 3)


def test_bad_images_are_refused_before_they_are_unpacked(tmp_path):
    pytest.importorskip("numpy")
    with pytest.raises(worker.BadImage, match="40x30 pixels, 100 are allowed"):
        worker.load_image(save(tmp_path), "image/png", 100)
    with pytest.raises(worker.BadImage, match="cannot be decoded: its bytes are no image/jpeg") as refused:
        worker.load_image(save(tmp_path), "image/jpeg", 10_000)  # the declared type decides the decoder
    assert str(tmp_path) not in str(refused.value), "clients read this: no paths of ours"
    with pytest.raises(worker.BadImage, match="media type 'image/gif'"):
        worker.load_image(save(tmp_path), "image/gif", 10_000)
    broken = Path(save(tmp_path))
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(worker.BadImage, match="cannot be decoded"):
        worker.load_image(str(broken), "image/png", 10_000)


def test_protocol_survives_images_that_fail(tmp_path, monkeypatch):
    pytest.importorskip("numpy")

    def recognizer():
        def recognize(pixels):
            if pixels.shape[0] == 31:
                raise RuntimeError("out of memory")
            return [piece("seen", 0, 0)]

        return recognize

    monkeypatch.setattr(worker, "make_recognizer", recognizer)
    requests = [
        {"id": 1, "path": save(tmp_path), "media_type": "image/png", "pixels_max": 10_000},
        {"id": 2, "path": "/nonexistent.png", "media_type": "image/png", "pixels_max": 10_000},
    ]
    replies = io.StringIO()
    assert worker.serve(io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), replies) == 0
    ready, first, second = map(json.loads, replies.getvalue().splitlines())
    assert ready == {"ready": True}
    assert first == {"id": 1, "text": "seen", "lines": 1}
    assert second["id"] == 2 and second["code"] == "invalid_argument"
    tall = {"id": 3, "path": save(tmp_path, size=(5, 31)), "media_type": "image/png", "pixels_max": 10_000}
    assert worker.answer(tall, recognizer())["code"] == "internal"
