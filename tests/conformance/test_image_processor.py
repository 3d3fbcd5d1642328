"""Run the common tests of transformers on the image processors of the vision models."""

import unittest

from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from hf_gmlp import GMLPVisionConfig

from .upstream.test_image_processing_common import ImageProcessingTester, ImageProcessingTestMixin


class GMLPImageProcessingTester(ImageProcessingTester):
    def __init__(self, parent):
        fields = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
        super().__init__(parent, size={"height": 18, "width": 18}, do_resize=True, do_normalize=True, **fields)

    def _get_image_processing_classes(self) -> dict[str, type]:
        """The method that it overrides looks for a model of transformers by the name of this file's folder."""
        return IMAGE_PROCESSOR_MAPPING[GMLPVisionConfig]


class GMLPImageProcessingTest(ImageProcessingTestMixin, unittest.TestCase):
    image_processor_tester_class = GMLPImageProcessingTester
    test_cast_dtype = True
