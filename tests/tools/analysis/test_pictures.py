from PIL import Image

from hf_gmlp.tools.analysis.pictures import check_picture, plt, save_picture


def test_picture_is_written_and_freed(tmp_path):
    figure, axis = plt.subplots()
    axis.plot([0, 1], [0, 1])
    check_picture(tmp_path / "line.PNG")
    save_picture(figure, tmp_path / "line.png")
    with Image.open(tmp_path / "line.png") as picture:
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 10
    assert figure.number not in plt.get_fignums()
