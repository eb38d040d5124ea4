"""Models of Transformers over dictionaries: their loss is that of x and y, and documents are apart if that is asked."""

import sys
from typing import Any

import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tokenmill.consumers import Batches

SIZES = {"vocab_size": 1 << 16, "max_position_embeddings": 16}
LLAMA = SIZES | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
GPT2 = {"vocab_size": 1 << 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}


def main() -> None:
    torch.manual_seed(0)

    def opened(**options: Any) -> Any:
        return Batches(sys.argv[1], "raw-text.train", batch_size=4, sequence_length=4, mask_loss=True, **options)

    for model in (LlamaForCausalLM(LlamaConfig(**LLAMA)).eval(), GPT2LMHeadModel(GPT2Config(**GPT2)).eval()):
        kinds = (opened(), opened(as_dict=True), opened(as_dict=True, documents=True))
        for batch, together, apart in zip(*kinds, strict=True):
            ids = batch.documents().document_ids
            logits = model(batch.x, attention_mask=(ids >= 0).long()).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten())
            torch.testing.assert_close(model(**together).loss, loss, equal_nan=True)
            seen = model(**apart, use_cache=False).logits
            for row, number in {(at, int(one)) for at in range(len(ids)) for one in ids[at] if one >= 0}:
                mine = (ids[row] == number).nonzero().flatten()
                alone = model(batch.x[row, mine][None]).logits[0]
                torch.testing.assert_close(seen[row, mine], alone, atol=1e-5, rtol=1e-4)


if __name__ == "__main__":
    main()
