"""What texts are about, from the model's own hidden states: the index of the archive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

COMPONENTS = 4  # directions that most tokens share: they tell form, not topic
SAMPLE = 8  # every so many tokens go into the statistics
ITERATIONS = 8


class TopicSpace:
    """Compares mean hidden states [E] by the cosine of what is left of them without the mean of
    all text and its strongest principal components ("all but the top", arXiv 1702.01417).

    Without the components, questions resemble questions whatever they ask. ``observe`` keeps
    the statistics of what was read.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.sum = np.zeros(size, dtype=np.float64)
        self.products = np.zeros((size, size), dtype=np.float32)
        self._basis = np.zeros((size, 0), dtype=np.float32)
        self._fresh = False

    def observe(self, hidden: Floats) -> None:
        """Add some of the tokens' states ``hidden`` [n, E] to the statistics."""
        sample = hidden[::SAMPLE]
        self.count += len(sample)
        self.sum += sample.sum(axis=0, dtype=np.float64)
        self.products += sample.T @ sample
        self._fresh = False

    def similarity(self, vectors: NDArray[np.floating], query: Floats) -> Floats:
        """Cosine of each of ``vectors`` [n, E] with ``query`` [E], [n]; 0 where one has no
        length."""
        mean = (self.sum / max(1, self.count)).astype(np.float32)
        basis = self._components(mean)
        wanted = query - mean
        wanted = wanted - basis @ (basis.T @ wanted)
        wanted /= max(float(np.linalg.norm(wanted)), 1e-6)
        result = np.empty(len(vectors), dtype=np.float32)
        for start in range(0, len(vectors), 1024):
            part = vectors[start : start + 1024].astype(np.float32) - mean
            shared = part @ basis
            squares = np.einsum("ij,ij->i", part, part) - np.einsum("ij,ij->i", shared, shared)
            lengths = np.sqrt(np.maximum(squares, 1e-12))
            result[start : start + 1024] = part @ wanted / lengths
        return result

    def table(self) -> dict[str, NDArray[Any]]:
        """All of it, for a session file."""
        return {
            "count": np.array([self.count, self._fresh]),
            "sum": self.sum,
            "products": self.products,
            "basis": self._basis,
        }

    def restore(self, table: dict[str, NDArray[Any]]) -> None:
        self.count, self._fresh = int(table["count"][0]), bool(table["count"][1])
        self.sum, self.products = table["sum"].copy(), table["products"].copy()
        self._basis = table["basis"].copy()

    def _components(self, mean: Floats) -> Floats:
        """The strongest principal components, [E, COMPONENTS], by subspace iteration."""
        count = min(COMPONENTS, self.count // 16)
        if self._fresh or count == 0:
            return self._basis
        if self._basis.shape[1] != count:
            start = np.random.default_rng(0).standard_normal((len(mean), count))
            self._basis = start.astype(np.float32)
        basis = self._basis
        for _ in range(ITERATIONS):
            spread = self.products @ basis / self.count - np.outer(mean, mean @ basis)
            basis = np.linalg.qr(spread)[0].astype(np.float32)
        self._basis, self._fresh = basis, True
        return basis
