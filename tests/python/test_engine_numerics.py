"""The engine's logits against an independent implementation in numpy, with the weights unpacked by the `gguf` package, and
against llama.cpp where it is installed. Needs TRIMTAB_BIN and TRIMTAB_MODEL (./test sets both)."""

import json
import os
import subprocess

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")

BINARY = os.environ.get("TRIMTAB_BIN", "")
MODEL = os.environ.get("TRIMTAB_MODEL", "")

pytestmark = pytest.mark.skipif(
    not (os.path.exists(BINARY) and os.path.exists(MODEL)),
    reason="TRIMTAB_BIN and TRIMTAB_MODEL must name the built command and the GGUF",
)

# "The capital of France is", and ids of no meaning that reach over a block of 128 tokens.
FRANCE = [504, 3575, 282, 4649, 314]
LONG = [(i * 7919 + 13) % 40000 for i in range(150)]


class Llama:
    """The model's definition in f64, on the weights as stored."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {t.name: t for t in reader.tensors}
        field = lambda name: reader.fields["llama." + name].contents()
        self.layers, self.heads = field("block_count"), field("attention.head_count")
        self.kv_heads, self.epsilon = field("attention.head_count_kv"), field("attention.layer_norm_rms_epsilon")
        self.base = field("rope.freq_base")
        self.cached = {}

    def weight(self, name):
        if name not in self.cached:
            t = self.weights[name]
            self.cached[name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
        return self.cached[name]

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weight(name)

    def rotate(self, x):
        """Neighbouring pairs (2i, 2i + 1) of each head turn by position * base^(-2i / 64)."""
        n, _, width = x.shape
        angle = np.arange(n)[:, None] * self.base ** (-np.arange(0, width, 2) / width)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None, :]
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def logits(self, tokens):
        x = self.weight("token_embd.weight")[tokens]
        n = len(tokens)
        mask = np.where(np.tri(n, dtype=bool), 0.0, -np.inf)
        for i in range(self.layers):
            w = lambda name: self.weight(f"blk.{i}.{name}.weight")
            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            q = self.rotate((h @ w("attn_q").T).reshape(n, self.heads, -1))
            k = self.rotate((h @ w("attn_k").T).reshape(n, self.kv_heads, -1))
            v = (h @ w("attn_v").T).reshape(n, self.kv_heads, -1)
            out = np.empty_like(q)
            for head in range(self.heads):
                shared = head // (self.heads // self.kv_heads)
                score = q[:, head] @ k[:, shared].T / np.sqrt(q.shape[-1]) + mask
                p = np.exp(score - score.max(-1, keepdims=True))
                out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, shared]
            x = x + out.reshape(n, -1) @ w("attn_output").T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        head = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        return self.norm(x, "output_norm.weight") @ self.weight(head).T


@pytest.fixture(scope="module")
def llama():
    return Llama(MODEL)


def engine_logits(tokens, tmp_path, *options):
    out = tmp_path / "logits.f32"
    subprocess.run(
        [BINARY, "logits", "--model", MODEL, "--all", "--out", str(out), *options],
        input=json.dumps(list(map(int, tokens))),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    return np.fromfile(out, dtype="<f4").reshape(len(tokens), -1)


def kl_divergence(reference, other):
    """Mean over positions of KL(softmax(reference) || softmax(other)), in nats."""

    def log_softmax(x):
        x = x.astype(np.float64) - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    a, b = log_softmax(reference), log_softmax(other)
    return float((np.exp(a) * (a - b)).sum(-1).mean())


def compare(name, reference, ours):
    error = np.abs(ours - reference)
    agreement = (ours.argmax(-1) == reference.argmax(-1)).mean()
    divergence = kl_divergence(reference, ours)
    print(f"\n{name}: largest logit error {error.max():.1e}, mean {error.mean():.1e}; KL {divergence:.1e} nats; top-1 {agreement:.3f}")
    return error.max(), divergence, agreement


@pytest.mark.parametrize("tokens", [FRANCE, LONG], ids=["france", "long"])
def test_logits_agree_with_numpy(llama, tokens, tmp_path):
    """The f32 path: weights as stored, arithmetic and cache in f32."""
    error, _, _ = compare("f32 cache", llama.logits(tokens), engine_logits(tokens, tmp_path, "--f32-cache"))
    assert error < 1e-3


def test_the_f16_cache_costs_little(llama, tmp_path):
    """What the ranks run: the same arithmetic, keys and values kept in f16."""
    _, divergence, agreement = compare("f16 cache", llama.logits(LONG), engine_logits(LONG, tmp_path))
    assert divergence < 1e-5
    assert agreement > 0.99


def test_chunks_change_no_bit(tmp_path):
    whole = engine_logits(LONG, tmp_path)
    for chunk in ("1", "100"):
        assert np.array_equal(whole, engine_logits(LONG, tmp_path, "--chunk-tokens", chunk))


def test_the_model_knows_the_capital_of_france(tmp_path):
    assert engine_logits(FRANCE, tmp_path)[-1].argmax() == 7042  # " Paris"


def test_llama_cpp_agrees(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(MODEL, n_ctx=256, logits_all=True, n_threads=1, verbose=False)
    model.eval(LONG)
    theirs = np.array(model.scores[: len(LONG)], dtype=np.float32)
    ours = engine_logits(LONG, tmp_path)
    _, divergence, _ = compare("beside llama.cpp", theirs, ours)
    assert divergence < 0.02  # it multiplies in int8, so it is the coarser of the two
