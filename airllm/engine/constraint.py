"""What restricts the next token of a sequence, such as a grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np


class Constraint(Protocol):
    """The state of one sequence. Before each token, the sampler asks for `mask`; the token it chose goes to
    `accept`. `airllm.text.grammar` makes constraints; the engine knows nothing else of them.
    """

    def mask(self) -> np.ndarray | None:
        """The tokens that may come next, bool (vocabulary); None for all. The array may be reused by the next
        call. A token that ends the text is among them only where the text may end.
        """

    def accept(self, token: int) -> None:
        """Continue after `token`. Raises ValueError for a token that may not come."""

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing may follow: the sequence ends, with the reason "end"."""


NewConstraint = Callable[[], Constraint]
