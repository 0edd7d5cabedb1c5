"""Samples by content: which recordings hold samples of a prompt, and answers that are put together of them.

The index is made of recordings, and can be made anew from them at any time. It only says where to look: what
it leads to is compared with what is asked for before it answers.
"""

from rolltape.index.prompt_key import canonical, prompt_digest, sampling_digest
from rolltape.index.sample_index import Sample, SampleIndex

__all__ = ["Sample", "SampleIndex", "canonical", "prompt_digest", "sampling_digest"]
