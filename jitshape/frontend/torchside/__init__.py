"""Where the machine meets torch: tensors, symbolic numbers, torch calls, modules, ambient state.

Everything outside this package is free of torch.  Importing `jitshape.frontend.torchside.wrap`
registers the wrappers.
"""
