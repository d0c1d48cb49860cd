"""trimtab's decisions for Python: the very C++ code that serves, with plain values in and out.

>>> import trimtab
>>> cost = trimtab.CostModel.from_profile('profiles/quadratic-example.toml')
>>> cost.cost_ns(q=3104, c=96896, prompt=100000)      # nanoseconds of compute quota
>>> trimtab.block_keys(tokens, model_revision='r1')   # one 32-digit key per full block of 128 tokens
"""
from trimtab._core import (BLOCK_TOKENS, CostModel, DecodePlacer, block_keys, decode_policy_names, image_patches, image_tokens,
                           tier_of)

__all__ = ['BLOCK_TOKENS', 'CostModel', 'DecodePlacer', 'block_keys', 'decode_policy_names', 'image_patches', 'image_tokens', 'tier_of']
