"""GPT-2's architecture (Radford et al. 2019; after Karpathy's nanoGPT), for `train_gpt.py`."""

# ruff: noqa: INP001 - beside a script, no part of a package

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention to tokens before, then a layer of its own for each token; both add to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        """Make a layer for vectors of ``width``."""
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return ``[batch, length, width]`` for the same."""
        batch, length, width = x.shape
        split = self.attention_in(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm_2(x))
        return out


class GPT(nn.Module):
    """Token ids to the next token's logits."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        """Make a model for sequences of up to ``length`` tokens."""
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._start)
        self.head.weight = self.tokens.weight  # tied, as in GPT-2: most of a tiny model is its embedding

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(
        self, x: torch.Tensor, places: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return logits ``[batch, length, vocabulary]``; a mask says which tokens see which, else all before."""
        states = self.tokens(x) + self.positions(
            torch.arange(x.shape[1], device=x.device) if places is None else places
        )
        for layer in self.layers:
            states = layer(states, mask)
        logits: torch.Tensor = self.head(self.norm(states))
        return logits
