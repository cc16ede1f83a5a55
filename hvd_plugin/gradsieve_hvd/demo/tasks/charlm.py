"""A character language model on the Python standard library's source text: for speed, with gradients of 24
MB.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

_SYMBOLS = 128  # ASCII; other characters become 0
_CONTEXT = 64
_WIDTH = 288
_LAYERS = 6
_HEADS = 6
_BATCH = 4
_CORPUS_CHARACTERS = 4_000_000
_TEST_WINDOWS = 32


class CharacterModel:
    """A decoder of 6 layers, 6.1 million parameters, over 99 % of them in tensors above the default size
    threshold.
    """

    name = "charlm"
    metric = "loss"
    steps_per_epoch = 20  # nothing is special about an "epoch" here: it is the interval of progress reports

    def __init__(self) -> None:
        text = _standard_library_text()
        codes = torch.tensor(list(text.encode("ascii", "replace")), dtype=torch.uint8)
        held_out = len(codes) // 20
        self._train, self._test = codes[:-held_out], codes[-held_out:]

    def model(self, seed: int) -> nn.Module:
        """The model with the weights of this seed."""
        torch.manual_seed(seed)
        return _Decoder()

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, model: nn.Module, step: int, rank: int, seed: int) -> Tensor:
        """Mean cross-entropy of the rank's own batch."""
        generator = torch.Generator().manual_seed(((seed * 1_000_003) + step) * 1_009 + rank)
        starts = torch.randint(len(self._train) - _CONTEXT - 1, (_BATCH,), generator=generator)
        return _window_loss(model, self._train, starts)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """The metric on the held-out part."""
        starts = torch.linspace(0, len(self._test) - _CONTEXT - 2, _TEST_WINDOWS).long()
        return float(_window_loss(model, self._test, starts))


def _standard_library_text() -> str:
    """The first 4 million characters of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[str] = []
    length = 0
    for path in sorted(folder.glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        length += len(parts[-1])
        if length >= _CORPUS_CHARACTERS:
            break
    return "".join(parts)[:_CORPUS_CHARACTERS]


def _window_loss(model: nn.Module, codes: Tensor, starts: Tensor) -> Tensor:
    windows = torch.stack([codes[start : start + _CONTEXT + 1] for start in starts.tolist()]).long()
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.reshape(-1, _SYMBOLS), windows[:, 1:].reshape(-1))


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(_SYMBOLS, _WIDTH)
        self.positions = nn.Embedding(_CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(_Block() for _ in range(_LAYERS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _SYMBOLS)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.symbols(codes) + self.positions.weight[: codes.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.mix = nn.Linear(_WIDTH, _WIDTH)
        self.expand, self.contract = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        batch, time, _ = hidden_BTD.shape
        heads = (
            self.query_key_value(self.norm_attention(hidden_BTD))
            .view(batch, time, 3, _HEADS, -1)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        hidden_BTD = hidden_BTD + self.mix(mixed.transpose(1, 2).reshape(batch, time, _WIDTH))
        output: Tensor = hidden_BTD + self.contract(F.gelu(self.expand(self.norm_feedforward(hidden_BTD))))
        return output
