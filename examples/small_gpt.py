"""A small GPT that learns the letters of this folder's programs, for train_ddp.py and train_fsdp.py."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
LETTERS = sorted(set(TEXT))
TOKENS = torch.tensor([LETTERS.index(letter) for letter in TEXT])
CONTEXT = 64


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, width)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """Predicts the next letter: the logarithm of each one's probability."""

    def __init__(self, width: int = 96, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.letters(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.log_softmax(self.head(x), dim=-1)


def loss_of(model: nn.Module, numbers: torch.Generator, rows: int = 8) -> torch.Tensor:
    """Draw pieces of the text, and compute how badly the model predicts them."""
    begins = torch.randint(len(TOKENS) - CONTEXT - 1, (rows,), generator=numbers)
    pieces = torch.stack([TOKENS[begin : begin + CONTEXT + 1] for begin in begins])
    return F.nll_loss(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
