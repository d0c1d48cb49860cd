"""The OCR that serves as this system's vision encoder (`python -m trimtab.ocr`, started by an encoder process)."""
