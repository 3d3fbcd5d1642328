"""Replacement of the export tests, which export every class by torch.export with transformers' exporter."""

import copy

import torch
from transformers.exporters import DynamoConfig, DynamoExporter
from transformers.testing_utils import require_torch_greater_or_equal, set_config_for_less_flaky_test, torch_device


class ExportTesterMixin:
    """A base of `ModelTesterMixin`, whose `model_tester`, `all_model_classes` and `_prepare_for_class` it uses."""

    def check_export(self, dynamic: bool) -> None:
        """Compare the exported program of every class with the model; if `dynamic`, also on a smaller batch."""
        for model_class in self.all_model_classes:
            with self.subTest(model_class.__name__):
                config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
                set_config_for_less_flaky_test(config)
                model = model_class(config).to(torch_device).eval()
                inputs = self._prepare_for_class(inputs, model_class)
                exported = DynamoExporter().export(model, copy.deepcopy(inputs), DynamoConfig(dynamic=dynamic))
                program = exported.program.module()
                smaller = {name: value[:-1] for name, value in inputs.items()}
                for batch in [inputs, smaller] if dynamic else [inputs]:
                    with torch.no_grad():
                        expected, actual = model(**batch), program(**batch)
                    self.assertEqual(list(expected.keys()), list(actual.keys()))
                    torch.testing.assert_close(actual[0], expected[0], atol=1e-4, rtol=1e-4)

    # transformers' exporter needs this version.
    @require_torch_greater_or_equal("2.11")
    def test_torch_export(self):
        self.check_export(dynamic=False)

    @require_torch_greater_or_equal("2.11")
    def test_torch_export_dynamic(self):
        self.check_export(dynamic=True)
