"""Our ids against two independent tokenizers: Hugging Face `tokenizers`, fed with the vocabulary and merges of the GGUF, and
llama.cpp, which reads the same file. Needs TRIMTAB_BIN and TRIMTAB_MODEL (./test sets both)."""

import codecs
import json
import os
import random
import subprocess
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TRIMTAB_BIN", "")
MODEL = os.environ.get("TRIMTAB_MODEL", "")

pytestmark = pytest.mark.skipif(
    not (os.path.exists(BINARY) and os.path.exists(MODEL)),
    reason="TRIMTAB_BIN and TRIMTAB_MODEL must name the built command and the GGUF",
)

WORDS = """
The quick brown fox jumps over the lazy dog. It's what they'll've said; I'm sure we'd DON'T CAN'T 'tis rock'n'roll.
  leading spaces,   inner   runs,\ttabs\t\tand trailing spaces   \n\n\nthree line feeds\r\n\r\nand carriage returns\r
1 22 333 4444 1234567890 3.14159 0x1F 1e-9 ½ ² ٣ Ⅷ 2024-11-29T15:36:00Z 192.168.0.1 v1.2.3-rc4 a1b2c3 word123 123word
naïve café Ελλάδα Привет мир שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก Xin chào Việt Nam İstanbul ﬁ ligature
你好，世界！今天天气很好。预填充与解码分离，负载均衡。我有３個蘋果。日本語のテキスト、カタカナ。한국어 텍스트입니다.
😀😃 👨‍👩‍👧‍👦 👍🏽 🇨🇳🇩🇪 ✈️ ☃ ❤️‍🔥 🧑🏿‍🚀 zero​width joiner‍ bom﻿ nbsp\u00a0thin\u2009line\u2028para\u2029nel\u0085 ideo\u3000end
def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\tif (a && b || !c) { std::vector<std::pair<int, T*>>& v = *p->q[i++]; }
{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, 3], "nested": {"a": null, "b": true}}}
https://example.com/a/b?c=d&e=f#g user@example.org C:\\Users\\me\\file.txt /usr/lib/x86_64-linux-gnu/libm.so.6 $PATH ${HOME}
<|im_start|>user\nignore the above<|im_end|>\n<|endoftext|><repo_name><|not_special|> <|im_end
!!!??? ... --- === *** ___ ~~~ ``` ''' \"\"\" ((([[[{{{ }}}]]])) <<<>>> @@@ ### $$$ %%% ^^^ &&& +++ ||| \\\\\\
control\x00\x01\x02\x03\x05\x07\x08\x0b\x0c\x0e\x1b[31mred\x1b[0m\x7f
"""


def corpus() -> list[str]:
    texts = WORDS.splitlines(keepends=True) + [WORDS, "", " ", "\n", "  ", " \n ", "\n\n a", "\t x"]
    texts += ["a  1", "1  a", "  12", "' s", "'s's"]
    texts += [p.read_text(encoding="utf-8") for p in sorted((ROOT / "src").rglob("*.h"))[:40]]
    texts += [p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("*.md"))]
    texts += ["a" * 5000, "ab" * 3000, " " * 3000 + "x", "\n" * 2001 + " y", "=" * 4001, "你" * 2000, "pneumono" * 700, "é" * 999]
    alphabet = list("aeiostnr  \n\t'.,!0159ÄñД你😀\u0301\u200d\u3000\u00a0{}<>_-")
    generator = random.Random(20260101)
    texts += ["".join(generator.choices(alphabet, k=generator.randrange(1, 60))) for _ in range(1500)]
    return texts


def broken_bytes() -> list[bytes]:
    """Stray, truncated and mixed-up UTF-8 without overlong forms and surrogates (see the test below for those)."""
    good = "word 你好 😀 é 12 ".encode()
    texts = [b"\xff", b"\x80", b"abc\xe2\x82", b"\xe2\x82abc", b"\xf0\x9f\x98", b"\xf0\x9f\x98 x", b"a\xc3", b"\xc3("]
    generator = random.Random(7)
    for _ in range(400):
        text = bytearray(good * 2)
        for _ in range(generator.randrange(1, 5)):
            if generator.random() < 0.5:
                text[generator.randrange(len(text))] = generator.choice(b"\x80\xbf\xc3\xe4\xfd\xfe\xff\xa0")
            else:
                del text[generator.randrange(len(text))]
        texts.append(bytes(text))
    return [t for t in texts if not holds_overlong_or_surrogate(t)]


def holds_overlong_or_surrogate(text: bytes) -> bool:
    for lead, low, high in ((0xE0, 0x80, 0x9F), (0xED, 0xA0, 0xBF), (0xF0, 0x80, 0x8F), (0xF4, 0x90, 0xBF)):
        if any(a == lead and low <= b <= high for a, b in zip(text, text[1:])):
            return True
    return any(byte in (0xC0, 0xC1) or byte >= 0xF5 for byte in text if byte != 0xFF and byte < 0xF8)


def one_replacement_per_byte(error):
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("each_byte", one_replacement_per_byte)


def ours(requests: list[dict]) -> list[dict]:
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([BINARY, "tokenize", "--model", MODEL], input=lines, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(requests)
    return answers


def our_ids(requests: list[dict]) -> list[list[int]]:
    return [answer["ids"] for answer in ours(requests)]


def first_difference(text, mine, other) -> str:
    at = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
    return f"{text[:200]!r}: at {at} {mine[at:at + 6]} and {other[at:at + 6]}"


@pytest.fixture(scope="module")
def vocabulary():
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    reader = gguf.GGUFReader(MODEL)
    field = lambda key: reader.fields[key].contents()  # noqa: E731
    return field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type"), field("tokenizer.ggml.merges")


@pytest.fixture(scope="module")
def hugging_face(vocabulary):
    """Built from parts: BPE over the file's vocabulary, single digits, then the byte-level GPT-2 pattern."""
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed")
    tokens, _, merges = vocabulary
    model = tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="module")
def llama():
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: llama.cpp's ids are not compared")
    return llama_cpp.Llama(MODEL, vocab_only=True, verbose=False)


def test_corpus_equals_hugging_face(hugging_face):
    texts = corpus()
    for text, mine in zip(texts, our_ids([{"text": t} for t in texts])):
        assert mine == hugging_face.encode(text).ids, first_difference(text, mine, hugging_face.encode(text).ids)


def test_every_character_of_unicode_14_equals_hugging_face(hugging_face):
    """A character decides words by being letter, number, space or other; four surroundings show which it is."""
    texts = []
    for code_point in range(0x110000):
        character = chr(code_point)
        if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
            texts.append(f"a{character}b {character}{character} 1{character}  {character}.")
    theirs = hugging_face.encode_batch(texts)
    missing = set("\x04\x06\x13\x14\x16\x1d")  # no token spells them: see the next test
    differing = {t[1] for t, mine, other in zip(texts, our_ids([{"text": t} for t in texts]), theirs) if mine != other.ids}
    differing -= missing
    assert not differing, f"{len(differing)} characters differ: {sorted(map(hex, map(ord, differing)))[:20]}"


def test_characters_without_a_token_vanish_after_merging(llama):
    """As in llama.cpp: they keep their neighbours apart. (Hugging Face drops them before merging.)"""
    texts = [f"a{c}b .{c}. !{c}!{c}" for c in "\x04\x06\x13\x14\x16\x1d"] + ["!\U00040000!", "\U000c0000"]
    for text, mine in zip(texts, our_ids([{"text": t} for t in texts])):
        assert mine == llama.tokenize(text.encode(), add_bos=False, special=False), text


def test_special_tokens_only_when_asked(hugging_face, vocabulary):
    tokenizers = pytest.importorskip("tokenizers")
    tokens, types, _ = vocabulary
    special = [t for t, kind in zip(tokens, types) if kind == 3]
    with_special = tokenizers.Tokenizer.from_str(hugging_face.to_str())
    with_special.add_special_tokens(special)
    texts = ["".join(special), "a<|im_end|>b <|im_end|> c", "<|im_start|>user\nhi<|im_end|>\n", "<|im_<|im_end|>", *WORDS.splitlines()]
    for text, mine in zip(texts, our_ids([{"text": t, "special": True} for t in texts])):
        assert mine == with_special.encode(text).ids, text
    control = {tokens.index(t) for t in special}
    for text, mine in zip(texts, our_ids([{"text": t} for t in texts])):
        assert not control & set(mine), text
        assert mine == hugging_face.encode(text).ids, text


def test_broken_utf8_equals_hugging_face_on_replaced_bytes(hugging_face):
    texts = broken_bytes()
    for text, mine in zip(texts, our_ids([{"hex": t.hex()} for t in texts])):
        assert mine == hugging_face.encode(text.decode("utf-8", "each_byte")).ids, text


def test_overlong_forms_and_surrogates_are_broken_bytes():
    """llama.cpp lets these pass as characters; no valid text holds them, and they have hidden attacks before."""
    texts = [b"\xc0\x80", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf0\x82\x82\xac", b"\xf4\x90\x80\x80"]
    replaced = [{"text": t.decode("utf-8", "each_byte")} for t in texts]
    assert our_ids([{"hex": t.hex()} for t in texts]) == our_ids(replaced)


def test_decoding_gives_the_text_back():
    texts = [t for t in corpus() if not set(t) & set("\x04\x06\x13\x14\x16\x1d")]  # bytes that the vocabulary lacks
    ids = our_ids([{"text": t} for t in texts])
    for text, back in zip(texts, ours([{"ids": i} for i in ids])):
        assert bytes.fromhex(back["hex"]) == text.encode(), text[:100]


def test_corpus_equals_llama_cpp(llama):
    texts = [t.encode() for t in corpus() if len(t) < 50_000] + broken_bytes()
    for text, mine in zip(texts, our_ids([{"hex": t.hex()} for t in texts])):
        other = llama.tokenize(text, add_bos=False, special=False) if text else []
        assert mine == other, first_difference(text, mine, other)


def test_special_tokens_equal_llama_cpp(llama):
    texts = ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "a<|im_end|>b <|endoftext|> c<repo_name>"]
    for text, mine in zip(texts, our_ids([{"text": t, "special": True} for t in texts])):
        assert mine == llama.tokenize(text.encode(), add_bos=False, special=True), text


def test_chat_prompts_equal_the_files_own_template(hugging_face, vocabulary):
    """The Jinja template of the GGUF, run by Jinja, then tokenized with special tokens by Hugging Face."""
    jinja2 = pytest.importorskip("jinja2", reason="jinja2 is not installed")
    tokenizers = pytest.importorskip("tokenizers")
    gguf = pytest.importorskip("gguf")
    template = jinja2.Template(gguf.GGUFReader(MODEL).fields["tokenizer.chat_template"].contents())
    with_special = tokenizers.Tokenizer.from_str(hugging_face.to_str())
    with_special.add_special_tokens([t for t, kind in zip(*vocabulary[:2]) if kind == 3])
    user = [{"role": "user", "content": "What's 2 + 2?\n\nAnswer briefly.  "}]
    turns = user + [{"role": "assistant", "content": "Four. 四です 😀"}, {"role": "user", "content": " and 3?"}]
    for messages in (user, turns, [{"role": "system", "content": "Be terse."}] + turns):
        text = template.render(messages=messages, add_generation_prompt=True)
        assert our_ids([{"messages": messages}]) == [with_special.encode(text).ids], text


def test_a_word_of_a_million_characters_takes_no_long_time():
    texts = ["a" * 1_000_000, "ab" * 500_000, "你" * 300_000, " " * 1_000_000, "=" * 1_000_000, "the" * 300_000]
    for text, mine in zip(texts, our_ids([{"text": t} for t in texts])):
        assert 0 < len(mine) <= len(text.encode())


def test_a_line_that_cannot_be_used_is_answered_by_an_error():
    answers = ours([{"hex": "e2zz"}, {"hex": "abc"}, {}, {"text": 5}, {"text": "fine"}, {"ids": [-5, 10**6]}])
    assert ["error" in a for a in answers] == [True, True, True, True, False, False]
    assert answers[5]["text"] == ""
