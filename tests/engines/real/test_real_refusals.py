"""What one client may ask in vain without harm to the others."""

import openai
import pytest
from real_support import MODEL


def test_refused_embeddings_cost_the_model_nothing(fleet, client):
    """However often somebody asks a chat model for embeddings, its workers still serve it."""
    for _ in range(8):
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=MODEL, input="the sea")
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=2
    )
    assert raw.headers["x-headrace-worker"] == "short"
