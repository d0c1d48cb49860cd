"""Reads text out of images: one JSON line in, one JSON line out.

    -> {"id": 7, "path": "/dev/shm/x.png", "media_type": "image/png", "pixels_max": 40000000}
    <- {"id": 7, "text": "...", "lines": 3}      or      {"id": 7, "code": "invalid_argument", "error": "..."}

The first line out is {"ready": true}: from then on an image takes no more than its own time. The worker ends when stdin
closes. It runs as a child of the C++ encoder process, which watches its time and starts it again when it dies.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import TextIO

from trimtab.ocr.layout import Piece, reading_order

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG"}


class BadImage(ValueError):
    """The image cannot be read; a retry would not help."""


def load_image(path: str, media_type: str, pixels_max: int):
    """Decodes to an RGB array [height, width, 3] of uint8. The header is judged before a pixel is unpacked."""
    import numpy
    from PIL import Image, ImageOps, UnidentifiedImageError

    if media_type not in FORMATS:
        raise BadImage(f"media type {media_type!r} is not one of {', '.join(FORMATS)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own, stricter limit follows
            with Image.open(path, formats=[FORMATS[media_type]]) as image:
                if image.width * image.height > pixels_max:
                    raise BadImage(f"the image has {image.width}x{image.height} pixels, {pixels_max} are allowed")
                upright = ImageOps.exif_transpose(image).convert("RGBA")
        # Transparent screenshots are read as they are shown: on white.
        canvas = Image.new("RGBA", upright.size, "white")
        canvas.alpha_composite(upright)
        return numpy.asarray(canvas.convert("RGB"))
    except BadImage:
        raise
    except UnidentifiedImageError as error:  # its own words would show clients the path of our file
        raise BadImage(f"the image cannot be decoded: its bytes are no {media_type}") from error
    except Exception as error:  # Pillow's decoders raise many kinds; all mean that the bytes are no such image
        raise BadImage(f"the image cannot be decoded: {error}") from error


def make_recognizer() -> Callable[[object], list[Piece]]:
    """The OCR engine. One thread: the machine's other cores belong to the language model."""
    from rapidocr import RapidOCR

    engine = RapidOCR(
        params={
            "Global.log_level": "error",
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )

    def recognize(pixels) -> list[Piece]:
        found = engine(pixels[:, :, ::-1])  # it wants BGR
        if found.boxes is None or found.txts is None:
            return []
        return [
            Piece(text, float(box[:, 0].min()), float(box[:, 1].min()), float(box[:, 0].max()), float(box[:, 1].max()))
            for box, text in zip(found.boxes, found.txts)
        ]

    return recognize


def answer(request: dict, recognize: Callable[[object], list[Piece]]) -> dict:
    try:
        pixels = load_image(request["path"], request["media_type"], int(request["pixels_max"]))
        text = reading_order(recognize(pixels))
        return {"id": request["id"], "text": text, "lines": len(text.splitlines())}
    except BadImage as error:
        return {"id": request["id"], "code": "invalid_argument", "error": str(error)}
    except Exception as error:  # one image must not end the worker
        return {"id": request.get("id", 0), "code": "internal", "error": f"{type(error).__name__}: {error}"}


def serve(requests: TextIO, replies: TextIO) -> int:
    recognize = make_recognizer()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in requests:
        print(json.dumps(answer(json.loads(line), recognize)), file=replies, flush=True)
    return 0
