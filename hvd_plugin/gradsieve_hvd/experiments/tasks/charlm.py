"""A character language model on the Python standard library's source text: for speed, with gradients of 24
MB.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from gradsieve.losses import DEFAULT_RECORDER, LossRecorder, cross_entropy

_SYMBOLS = 128  # ASCII; other characters become 0
_CONTEXT = 64
_BATCH = 4
_CORPUS_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterModelSettings:
    """A size of the model, the learning rate that suits it, and how many windows it is judged by."""

    name: str
    width: int
    layers: int
    heads: int
    learning_rate: float
    test_windows: int


FULL = CharacterModelSettings(
    name="charlm", width=288, layers=6, heads=6, learning_rate=0.05, test_windows=32
)
SMALL = CharacterModelSettings(
    name="charlm-small", width=96, layers=1, heads=4, learning_rate=0.3, test_windows=256
)


class CharacterModel:
    """A decoder: in full 6 layers and 6.1 million parameters, over 99 % of them in tensors above the default
    size threshold; small 1 layer and 143 000 parameters.
    """

    metric = "loss"
    batch = _BATCH
    steps_per_epoch = 20  # nothing is special about an "epoch" here: it is the interval of progress reports

    def __init__(self, settings: CharacterModelSettings = FULL) -> None:
        self._settings = settings
        self.name = settings.name
        text = standard_library_text()
        codes = torch.tensor(list(text.encode("ascii", "replace")), dtype=torch.uint8)
        held_out = len(codes) // 20
        self._train, self._test = codes[:-held_out], codes[-held_out:]
        self.samples = (len(self._train) - 1) // _CONTEXT  # windows side by side

    def model(self, seed: int) -> nn.Module:
        """The model with the weights of this seed."""
        torch.manual_seed(seed)
        return _Decoder(self._settings)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=self._settings.learning_rate, momentum=0.9)

    def loss(
        self, model: nn.Module, step: int, rank: int, seed: int, recorder: LossRecorder = DEFAULT_RECORDER
    ) -> Tensor:
        """Mean cross-entropy of the rank's own batch."""
        generator = torch.Generator().manual_seed(((seed * 1_000_003) + step) * 1_009 + rank)
        starts = torch.randint(len(self._train) - _CONTEXT - 1, (_BATCH,), generator=generator)
        return _window_loss(model, self._train, starts, recorder)

    def loss_on(
        self, model: nn.Module, samples: Sequence[int], recorder: LossRecorder = DEFAULT_RECORDER
    ) -> Tensor:
        """Mean cross-entropy of chosen windows."""
        return _window_loss(model, self._train, torch.tensor(samples) * _CONTEXT, recorder)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """The metric on the held-out part."""
        starts = torch.linspace(0, len(self._test) - _CONTEXT - 2, self._settings.test_windows).long()
        return float(_window_loss(model, self._test, starts, DEFAULT_RECORDER))


def standard_library_text() -> str:
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


def _window_loss(model: nn.Module, codes: Tensor, starts: Tensor, recorder: LossRecorder) -> Tensor:
    windows = torch.stack([codes[start : start + _CONTEXT + 1] for start in starts.tolist()]).long()
    windows = windows.to(next(model.parameters()).device)
    logits = model(windows[:, :-1])
    return cross_entropy(logits.reshape(-1, _SYMBOLS), windows[:, 1:].reshape(-1), recorder=recorder)


class _Decoder(nn.Module):
    def __init__(self, settings: CharacterModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.symbols = nn.Embedding(_SYMBOLS, width)
        self.positions = nn.Embedding(_CONTEXT, width)
        self.blocks = nn.Sequential(*(_Block(width, settings.heads) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _SYMBOLS)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.symbols(codes) + self.positions.weight[: codes.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        batch, time, width = hidden_BTD.shape
        heads = (
            self.query_key_value(self.norm_attention(hidden_BTD))
            .view(batch, time, 3, self._heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        hidden_BTD = hidden_BTD + self.mix(mixed.transpose(1, 2).reshape(batch, time, width))
        output: Tensor = hidden_BTD + self.contract(F.gelu(self.expand(self.norm_feedforward(hidden_BTD))))
        return output
