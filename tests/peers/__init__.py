"""Other descriptions of gMLP, written anew here from the documents that give them, for ours to be compared with."""
