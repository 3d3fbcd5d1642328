"""A check that the common tests lack."""

import torch
from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard


class FSDPPlanMixin:
    """Compare the plan with the model, since the common FSDP tests accept a plan with misspelled names."""

    def test_fsdp_plan_names_modules(self):
        for model_class in self.all_model_classes:
            with torch.device("meta"):
                model = model_class(self.model_tester.get_config())
            names = {replace_layer_number_by_wildcard(name) for name, _ in model.named_modules()}
            self.assertTrue(model._fsdp_plan)
            self.assertLessEqual(set(model._fsdp_plan), names)
