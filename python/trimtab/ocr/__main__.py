"""Entry point: speaks the protocol of `trimtab.ocr.worker` on stdin and stdout."""

import os
import sys

from trimtab.ocr.worker import serve

# Libraries print to stdout as they like; the protocol keeps the real one for itself.
replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.exit(serve(sys.stdin, replies))
