"""Replaces the tests of `generate`, for every class that can generate text."""

import torch
from transformers.testing_utils import set_config_for_less_flaky_test, torch_device


class GenerationTesterMixin:
    """Goes with `ModelTesterMixin`, whose `model_tester` and `all_model_classes` it uses."""

    def test_greedy_generate(self):
        """All kinds of caches, no cache, and prompts processed in pieces give the same texts, also with padding."""
        for model_class in self.all_model_classes:
            if not model_class.can_generate():
                continue
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            set_config_for_less_flaky_test(config)
            torch.manual_seed(0)
            model = model_class(config).to(torch_device).double().eval()
            # No text ends early, and padding is a token like any other except for the mask.
            model.generation_config.eos_token_id = None
            ids = inputs["input_ids"][:4]
            mask = torch.ones_like(ids)
            mask[1, :2] = mask[2, :-1] = 0
            for prompt in ({}, {"attention_mask": mask}):
                options = prompt | {"max_new_tokens": 10, "do_sample": False}
                expected = model.generate(ids, use_cache=False, **options)
                self.assertEqual(expected.shape[1], ids.shape[1] + 10)
                for cache in ({}, {"cache_implementation": "static"}, {"prefill_chunk_size": 3}):
                    self.assertTrue(torch.equal(model.generate(ids, **options, **cache), expected))
