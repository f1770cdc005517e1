"""Counts its answers in a tensor, and multiplies matrices with two threads."""

import torch

torch.set_num_threads(2)
COUNT = torch.zeros(1, dtype=torch.int64)
WEIGHTS = torch.randn(512, 512)
INPUT = torch.ones(512, 512)


async def application(scope, receive, send):
    """One answer: its number, and what no other server knows."""
    if scope["type"] != "http":
        return
    COUNT.add_(1)
    answer = torch.tanh(INPUT @ WEIGHTS).sum(dtype=torch.float64).item()
    body = f"{COUNT.item()} {answer:.6f}".encode()
    length = str(len(body)).encode()
    headers = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
