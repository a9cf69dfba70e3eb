"""Reduce a failing case: its dimensions, then the tensors themselves, until nothing can be left out.

Hypothesis shrinks what it draws. Here every dimension is tried against its simpler values whatever
it was drawn from, and below the case each tensor is made constant but for the elements that the
failure needs.
"""
