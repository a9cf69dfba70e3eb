"""Mutation score: faults planted in every kernel, and what the suite makes of each.

Two kinds. ``catalogue``: the wrong decoders of ``conformance/faults``, as kernels. ``source``: the Triton
sources themselves with one node of their syntax tree changed, so that the score is not only about faults that
somebody thought of. A third, ``control``, are right kernels: none may be accused.
"""
