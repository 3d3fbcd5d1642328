"""Replacement of the tests of `generate`, for every class that can generate text."""

import torch
from transformers.testing_utils import set_config_for_less_flaky_test, torch_device


class GenerationTesterMixin:
    """Tests for a subclass of `ModelTesterMixin`, whose `model_tester` and `all_model_classes` they use."""

    def generative_cases(self):
        """Yield (model in double precision, prompts [B, m], mask with padding on the left) for each class."""
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
            yield model, ids, mask

    def check_same_texts(self, mask_prompts: bool, **options) -> None:
        """Check that all kinds of caches, no cache, and prompts processed in pieces give the same texts."""
        for model, ids, mask in self.generative_cases():
            masks = {"attention_mask": mask} if mask_prompts else {}
            texts = []
            static = {"cache_implementation": "static"}
            for cache in ({}, static, {"use_cache": False}, {"prefill_chunk_size": 3}):
                torch.manual_seed(0)
                texts.append(model.generate(ids, max_new_tokens=10, **masks, **options, **cache))
            self.assertEqual(texts[0].shape[1], ids.shape[1] + 10)
            for text in texts[1:]:
                self.assertTrue(torch.equal(text, texts[0]))

    def test_greedy_generate(self):
        self.check_same_texts(False, do_sample=False)
        self.check_same_texts(True, do_sample=False)

    def test_sample_generate(self):
        self.check_same_texts(True, do_sample=True, num_return_sequences=2)

    def test_beam_search_generate(self):
        self.check_same_texts(True, num_beams=3, num_return_sequences=2)

    def test_generate_from_inputs_embeds(self):
        for model, ids, mask in self.generative_cases():
            options = {"attention_mask": mask, "max_new_tokens": 10, "do_sample": False}
            embeds = model.get_input_embeddings()(ids)
            text = model.generate(inputs_embeds=embeds, **options)
            self.assertTrue(torch.equal(text, model.generate(ids, **options)[:, ids.shape[1] :]))

    def test_left_padding_compatibility(self):
        for model, ids, mask in self.generative_cases():
            texts = model.generate(ids, attention_mask=mask, max_new_tokens=10, do_sample=False)
            for row, row_mask, text in zip(ids, mask, texts):
                alone = model.generate(row[row_mask == 1][None], max_new_tokens=10, do_sample=False)[0]
                self.assertTrue(torch.equal(text[-len(alone) :], alone))
