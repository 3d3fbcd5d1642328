"""Pretrain an encoder by replaced-token detection (ELECTRA) instead of masked language modeling, on the same text.

    python -m examples.electra recipes/laptop.yaml --tokenizer_name FOLDER --train_file FILE ... --output_dir out
    python run_glue.py recipes/laptop-finetune.yaml --model_name_or_path out/discriminator ...

A small generator, a masked language model, fills the masks; the discriminator, which is kept, says of every token
whether it was replaced (https://arxiv.org/abs/2003.10555). Both are trained together and share their token embeddings.
The flags are those of run_mlm.py.
"""

import copy
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from hf_gmlp.tasks.mlm.arguments import MLMArguments
from hf_gmlp.tasks.mlm.masking import MaskingCollator
from hf_gmlp.tasks.text import load_texts, tokenize
from hf_gmlp.training.arguments import ModelArguments, RunArguments, parse_arguments
from hf_gmlp.training.build import load_config, load_tokenizer
from hf_gmlp.training.optimization import WithMuon, hidden_matrices
from hf_gmlp.training.start import start_run
from hf_gmlp.training.trainer import GMLPTrainer

# Of the discriminator's loss, which is per token and small, in the sum of both (ELECTRA, appendix A).
DISCRIMINATOR_WEIGHT = 50.0


class ReplacedTokenDetection(PreTrainedModel):
    """A generator and a discriminator of one type of model, in training.

    Args:
        config: Of the discriminator. The generator has a quarter of its layers, half as wide inside (d_ffn).
    """

    _tied_weights_keys = {
        f"generator.{name}.weight": "discriminator.model.embeddings.word_embeddings.weight"
        for name in ("model.embeddings.word_embeddings", "decoder")
    }

    def __init__(self, config):
        super().__init__(config)
        small = copy.deepcopy(config)
        small.num_hidden_layers = max(1, config.num_hidden_layers // 4)
        small.intermediate_size = config.intermediate_size // 2
        small.sparse_prediction = True
        self.generator = AutoModelForMaskedLM.from_config(small)
        self.discriminator = AutoModelForTokenClassification.from_config(config)
        self.post_init()
        self.tie_weights()

    def _init_weights(self, module):
        # Both models have initialized theirs.
        pass

    def forward(self, input_ids, labels, masked_positions, attention_mask=None) -> ModelOutput:
        """Take a batch of `MaskingCollator` with a fixed count, and return the sum of both losses."""
        masked = self.generator(input_ids, attention_mask, labels=labels, masked_positions=masked_positions)
        # Masks are filled with samples of the generator (by Gumbel noise), through which no gradient flows.
        noise = -torch.empty_like(masked.logits).exponential_().log()
        samples = (masked.logits.detach() + noise).argmax(-1)
        tokens = torch.where(labels == -100, input_ids, labels)
        # Of these positions, some fill up the rows and have no label.
        is_masked = labels.gather(1, masked_positions) != -100
        samples = torch.where(is_masked, samples, tokens.gather(1, masked_positions))
        filled = tokens.scatter(1, masked_positions, samples)
        # A sample may be the right token by chance.
        is_replaced = (filled != tokens).long()
        if attention_mask is not None:
            is_replaced = is_replaced.masked_fill(attention_mask == 0, -100)
        detected = self.discriminator(filled, attention_mask, labels=is_replaced)
        return ModelOutput(loss=masked.loss + DISCRIMINATOR_WEIGHT * detected.loss, logits=detected.logits)


class ReplacedTokenTrainer(GMLPTrainer):
    """Trains the hidden matrices of both encoders with Muon, if there is a --muon_learning_rate."""

    def optimizer_with_muon(self, model, groups, others) -> WithMuon:
        matrices = [*hidden_matrices(model.generator), *hidden_matrices(model.discriminator)]
        return WithMuon(matrices, groups, others, self.args.muon_learning_rate, self.args.weight_decay)


def main():
    model_args, data_args, args = parse_arguments((ModelArguments, MLMArguments, RunArguments), __doc__)
    args.do_eval, args.eval_strategy = False, "no"
    checkpoint = start_run(model_args, data_args, args)
    config = load_config(model_args, num_labels=2, id2label={0: "original", 1: "replaced"})
    length = data_args.sequence_length(config)
    texts = load_texts(data_args, validate=False, seed=args.seed)
    words = (row["text"] for row in texts["train"] if row["text"])
    tokenizer = load_tokenizer(model_args, args, words, max_length=length, config=config)
    collator = MaskingCollator(tokenizer, data_args.mlm_probability, seed=args.seed, fixed_count=True)
    dataset, _ = tokenize(texts, tokenizer, length, data_args, seed=args.seed)
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id

    args.remove_unused_columns = False
    trainer = ReplacedTokenTrainer(
        model=ReplacedTokenDetection(config),
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        data_collator=collator,
        card=data_args.card_facts(model_args, data_args.description(dataset, None, length)),
    )
    trainer.finish(trainer.train_and_evaluate(checkpoint))
    folder = Path(args.output_dir) / "discriminator"
    trainer.accelerator.unwrap_model(trainer.model).discriminator.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"The model to fine-tune: {folder}")


if __name__ == "__main__":
    main()
