"""The NumPy backend: the definitions of the ops."""

from airllm.backends.declaration import Declaration

BACKEND = Declaration(
    definitions=True,
    title="NumPy",
    runs_on="CPU",
    aliases=("numpy",),
    rank=60,
    in_shipped_order=True,
    on_processor=True,
    number_in_cpp=5,
    colour="#8b929c",
)
