"""SentencePiece: merges a text by the scores of its pieces, as llama.cpp does.

The package `tokenizers` can only merge by ranks of pairs. Deriving those from scores takes seconds for a
vocabulary of 262144. It also gives other ids if one piece can arise from two overlapping pairs (runs of
spaces); here the leftmost pair wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from airllm.text.vocabulary import SPACE

_END = -1


class SentencePiece:
    """Encodes text, given the ids of the pieces and the scores of the ids."""

    def __init__(self, ids: Mapping[str, int], scores: Sequence[float], unknown: int | None):
        self._ids, self._scores, self._unknown = ids, scores, unknown

    def encode(self, text: str) -> list[int]:
        """Ids of the whole text. A character that is no piece becomes its bytes, or the unknown token."""
        found: list[int] = []
        for piece in self._merge(text.replace(" ", SPACE)):
            token = self._ids.get(piece)
            found += self._bytes(piece) if token is None else [token]
        return found

    def _merge(self, text: str) -> list[str]:
        pieces = list(text)
        after = [*range(1, len(pieces)), _END]
        before = [_END, *range(len(pieces) - 1)]
        waiting: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left != _END and right != _END:
                token = self._ids.get(piece := pieces[left] + pieces[right])
                if token is not None:
                    heapq.heappush(waiting, (-self._scores[token], left, right, len(piece)))

        for left in range(len(pieces) - 1):
            offer(left, left + 1)
        while waiting:
            _, left, right, size = heapq.heappop(waiting)
            # One of the two may have been merged with another piece meanwhile.
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != size:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = after[right]
            if after[left] != _END:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [piece for piece in pieces if piece]

    def _bytes(self, piece: str) -> list[int]:
        tokens = [self._ids.get(f"<0x{byte:02X}>", self._unknown) for byte in piece.encode()]
        if None in tokens:
            raise ValueError(
                f"encode: text has {piece!r}, expected text that the vocabulary has pieces or bytes for"
            )
        return [token for token in tokens if token is not None]
