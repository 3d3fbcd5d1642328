import pytest
from PIL import Image

from hf_gmlp.errors import InputError
from hf_gmlp.tools.analysis.pictures import plt, save_picture


def test_picture_is_written_and_freed(tmp_path):
    figure, axis = plt.subplots()
    axis.plot([0, 1], [0, 1])
    with pytest.raises(InputError, match="line.xyz"):
        save_picture(figure, tmp_path / "line.xyz")
    save_picture(figure, tmp_path / "line.PNG")
    with Image.open(tmp_path / "line.PNG") as picture:
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 10
    assert figure.number not in plt.get_fignums()
