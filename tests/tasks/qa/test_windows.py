from datasets import Dataset

from hf_gmlp.answers import make_windows
from hf_gmlp.tasks.qa.windows import DECODING_COLUMNS, window_dataset

from ...samples import flat, squad


def test_window_dataset_keeps_what_decoding_needs(squad_tokenizer):
    rows = Dataset.from_list(flat(squad(4)))
    lengths = {"max_seq_length": 32, "doc_stride": 8}
    windows = window_dataset(rows, squad_tokenizer, **lengths)
    assert set(DECODING_COLUMNS) < set(windows.column_names)
    direct = make_windows(rows["question"], rows["context"], squad_tokenizer, **lengths)
    assert {name: windows[name][:] for name in direct} == direct
    training = window_dataset(rows, squad_tokenizer, **lengths, training=True)
    assert not set(DECODING_COLUMNS) & set(training.column_names)
    assert training["start_positions"][:] == windows["start_positions"][:] and max(training["start_positions"]) > 0
