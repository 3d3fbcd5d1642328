"""Stands in for the test classes of transformers' pipelines.

`PipelineTesterMixin` loads a tiny checkpoint with its tokenizer or image processor, gets a pipeline and examples from
`get_test_pipeline`, lets `run_pipeline_test` check the answers, and then runs ten examples in batches of four.
"""

import unittest

import numpy as np
import torch
from PIL import Image
from transformers import (
    FeatureExtractionPipeline,
    FillMaskPipeline,
    ImageClassificationPipeline,
    ImageFeatureExtractionPipeline,
    TextClassificationPipeline,
    TextGenerationPipeline,
    TokenClassificationPipeline,
    ZeroShotClassificationPipeline,
)
from transformers.testing_utils import torch_device

# Of different lengths, so that batches of them are padded.
TEXTS = ["the cat sat on the mat", "a dog", "the dog sat on the cat and the cat ran to the mat ."]


IMAGES = [Image.effect_noise(size, 90).convert("RGB") for size in ((50, 40), (30, 24))]


def read_scores(answers: list[dict]) -> list[float]:
    return [answer["score"] for answer in answers]


class PipelineTests(unittest.TestCase):
    """The base of the classes below."""

    pipeline_class = None
    examples = TEXTS

    def get_test_pipeline(self, model, tokenizer=None, image_processor=None, dtype="float32", **unused):
        """Returns a pipeline with the model in the given precision, and examples for it."""
        model = model.to(getattr(torch, dtype))
        pipeline = self.pipeline_class(
            model=model, tokenizer=tokenizer, image_processor=image_processor, device=torch_device
        )
        return pipeline, self.examples

    def check_scores(self, answers: list[dict], count: int) -> None:
        """Checks that there are `count` answers with scores between 0 and 1, best first."""
        scores = read_scores(answers)
        self.assertEqual(len(scores), count)
        self.assertTrue(all(0 <= score <= 1 for score in scores), scores)
        self.assertEqual(scores, sorted(scores, reverse=True))

    def check_alone_as_in_a_batch(self, pipeline, read_scores, **options) -> None:
        """Checks that an example has the same scores alone and padded in a batch."""
        examples = list(self.examples)
        alone = [read_scores(pipeline(example, **options)) for example in examples]
        batched = [read_scores(answer) for answer in pipeline(examples, batch_size=len(examples), **options)]
        tolerance = 1e-4 if pipeline.model.dtype == torch.float32 else 1e-2
        for one, other in zip(alone, batched):
            np.testing.assert_allclose(one, other, atol=tolerance)


class FeatureExtractionTests(PipelineTests):
    pipeline_class = FeatureExtractionPipeline

    def token_count(self, pipeline, example):
        return len(pipeline.tokenizer(example)["input_ids"])

    def run_pipeline_test(self, pipeline, examples):
        for example in examples:
            features = np.array(pipeline(example))
            tokens = self.token_count(pipeline, example)
            self.assertEqual(features.shape, (1, tokens, pipeline.model.config.hidden_size))
            self.assertTrue(np.isfinite(features).all())


class FillMaskTests(PipelineTests):
    pipeline_class = FillMaskPipeline
    examples = ["the [MASK] sat on the mat", "a [MASK]", "the dog sat on the [MASK] and the cat ran to the mat ."]

    def run_pipeline_test(self, pipeline, examples):
        for example in examples:
            answers = pipeline(example, top_k=3)
            self.check_scores(answers, 3)
            for answer in answers:
                self.assertEqual(pipeline.tokenizer.decode([answer["token"]]), answer["token_str"])
        only_known = pipeline(examples[0], targets=["cat", "dog"])
        self.assertEqual({answer["token_str"] for answer in only_known}, {"cat", "dog"})
        two_masks = pipeline("the [MASK] sat on the [MASK]", top_k=2)
        self.assertEqual([len(answers) for answers in two_masks], [2, 2])
        self.check_alone_as_in_a_batch(pipeline, read_scores)


class TextGenerationTests(PipelineTests):
    pipeline_class = TextGenerationPipeline

    def get_test_pipeline(self, model, tokenizer=None, **kwargs):
        """Removes the [SEP] that the tokenizer adds to every prompt, after which no text would follow."""
        tokenizer.backend_tokenizer.post_processor = None
        model.generation_config.update(max_new_tokens=5, do_sample=False, eos_token_id=None)
        return super().get_test_pipeline(model, tokenizer, **kwargs)

    def run_pipeline_test(self, pipeline, examples):
        alone = [pipeline(example)[0]["generated_text"] for example in examples]
        for example, text in zip(examples, alone):
            self.assertTrue(text.startswith(example))
            self.assertGreater(len(text), len(example))
        # Prompts of different lengths, padded on the left. In half precision, rounding may change a word.
        if pipeline.model.dtype == torch.float32:
            batched = pipeline(list(examples), batch_size=len(examples))
            self.assertEqual([answers[0]["generated_text"] for answers in batched], alone)
        several = pipeline(examples[0], num_return_sequences=2, num_beams=2, return_full_text=False)
        self.assertEqual(len(several), 2)


class TextClassificationTests(PipelineTests):
    pipeline_class = TextClassificationPipeline

    def check_labels(self, pipeline, examples):
        labels = set(pipeline.model.config.id2label.values())
        for example in examples:
            answers = pipeline(example, top_k=len(labels))
            self.check_scores(answers, len(labels))
            self.assertEqual({answer["label"] for answer in answers}, labels)
            self.assertAlmostEqual(sum(answer["score"] for answer in answers), 1, places=2)
        self.check_alone_as_in_a_batch(pipeline, read_scores, top_k=len(labels))

    def run_pipeline_test(self, pipeline, examples):
        self.check_labels(pipeline, examples)
        pair = pipeline({"text": examples[0], "text_pair": examples[1]})
        self.assertIn(pair["label"], pipeline.model.config.id2label.values())


class TokenClassificationTests(PipelineTests):
    pipeline_class = TokenClassificationPipeline

    def run_pipeline_test(self, pipeline, examples):
        labels = set(pipeline.model.config.id2label.values())
        for example in examples:
            entities = pipeline(example)
            self.assertEqual([example[entity["start"] : entity["end"]] for entity in entities], example.split())
            self.assertLessEqual({entity["entity"] for entity in entities}, labels)
            self.assertTrue(all(0 <= entity["score"] <= 1 for entity in entities))
        grouped = pipeline(examples[0], aggregation_strategy="simple")
        self.assertEqual(" ".join(group["word"] for group in grouped), examples[0])
        self.check_alone_as_in_a_batch(pipeline, read_scores)


class ZeroShotTests(PipelineTests):
    pipeline_class = ZeroShotClassificationPipeline

    def get_test_pipeline(self, model, tokenizer=None, **kwargs):
        """Names one of the labels "entailment", which zero-shot classification looks for."""
        model.config.label2id = {"entailment": 0, "neutral": 1, "contradiction": 2}
        model.config.id2label = {number: label for label, number in model.config.label2id.items()}
        pipeline, examples = super().get_test_pipeline(model, tokenizer, **kwargs)
        pipeline._preprocess_params["candidate_labels"] = ["cat", "dog", "mat"]
        return pipeline, examples

    def run_pipeline_test(self, pipeline, examples):
        answer = pipeline(examples[0], candidate_labels=["cat", "dog", "mat"], hypothesis_template="the {} .")
        self.assertEqual(answer["sequence"], examples[0])
        self.assertEqual(set(answer["labels"]), {"cat", "dog", "mat"})
        self.assertEqual(answer["scores"], sorted(answer["scores"], reverse=True))
        self.assertAlmostEqual(sum(answer["scores"]), 1, places=2)


class ImageClassificationTests(TextClassificationTests):
    pipeline_class = ImageClassificationPipeline
    examples = IMAGES

    def run_pipeline_test(self, pipeline, examples):
        self.check_labels(pipeline, examples)


class ImageFeatureExtractionTests(FeatureExtractionTests):
    pipeline_class = ImageFeatureExtractionPipeline
    examples = IMAGES

    def token_count(self, pipeline, example):
        return pipeline.model.config.max_position_embeddings


PIPELINE_TESTS = {
    "feature-extraction": FeatureExtractionTests,
    "fill-mask": FillMaskTests,
    "text-generation": TextGenerationTests,
    "text-classification": TextClassificationTests,
    "token-classification": TokenClassificationTests,
    "zero-shot": ZeroShotTests,
    "image-classification": ImageClassificationTests,
    "image-feature-extraction": ImageFeatureExtractionTests,
}
