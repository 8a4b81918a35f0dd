"""A byte-level BPE tokenizer of 512 tokens, trained on the corpus."""

from __future__ import annotations

import json
from typing import Any

from corpus import END_OF_TEXT, MASK, SPECIALS, Corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512


def train(corpus: Corpus) -> Tokenizer:
    """Train the tokenizer; raises when the corpus is too small for its 512 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [passage.text for passage in corpus.passages]
    texts += [content for chat in corpus.chats for _, content in chat.turns]
    texts += ["user\n", "assistant\n", "system\n", corpus.system]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens were found, not {VOCABULARY}")
    return _specials_last(json.loads(tokenizer.to_str()))


def _specials_last(values: dict[str, Any]) -> Tokenizer:
    """The trainer puts special tokens first; here they go last, so that token 0 is '!' as in Qwen and GPT-2.

    With that a server that writes token 0 for ever shows "!!!!", as the large models do.
    """
    count = len(SPECIALS)

    def moved(token: int) -> int:
        return token - count if token >= count else VOCABULARY - count + token

    vocabulary = {text: moved(token) for text, token in values["model"]["vocab"].items()}
    values["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    for added in values["added_tokens"]:
        added["id"] = moved(added["id"])
    tokenizer = Tokenizer.from_str(json.dumps(values))
    first, last = tokenizer.decode([0]), tokenizer.token_to_id(MASK)
    if first != "!" or last != VOCABULARY - 1 or tokenizer.token_to_id(END_OF_TEXT) != VOCABULARY - count:
        raise ValueError(f"token 0 is {first!r} and {MASK} is {last}: the order of the vocabulary is not as meant")
    return tokenizer
