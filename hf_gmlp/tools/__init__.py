# What is said about an encoder without a head, after its name.
EMBEDDINGS = (
    "gives embeddings, not classes or answers: embed and search texts with AutoModel's pooler_output or with "
    "sentence-transformers (docs/notebooks/search.ipynb), or train a classifier with `hf-gmlp classify`."
)
