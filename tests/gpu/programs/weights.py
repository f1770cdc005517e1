"""A PyTorch model of random weights; answers with a product over all of them."""

from __future__ import annotations

import sys
from typing import Any

from tests.gpu.programs import missing, serve

_WIDTH = 8192


def layers(amount: int, width: int = _WIDTH, seed: int = 1) -> Any:
    """A function of no arguments that computes with so many bytes of weights."""
    import torch  # noqa: PLC0415 - may be missing

    torch.manual_seed(seed)
    count = max(1, amount // (2 * width * width))
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [torch.randn(width, width, **kind) for _ in range(count)]
    asked = torch.randn(1, width, **kind)

    def answer() -> str:
        found = asked
        for layer in weights:
            found = torch.nn.functional.normalize(found @ layer)
        return str(found.cpu().view(torch.int16).numpy().tobytes().hex()[:64])

    return answer


if __name__ == "__main__":
    try:
        made = layers(int(sys.argv[1]))
    except ImportError as error:
        missing(f"{sys.executable} has no PyTorch: {error}")
    serve(made)
