"""References that share no code with tilegrad's autodiff, operators or kernels.

Nothing here imports tilegrad's IR, passes or operators: a reference that used them would repeat their mistakes. The
inputs are an `onnx.ModelProto`, NumPy arrays and a recipe; the outputs are NumPy arrays and a verdict.

- `reference`           what a recipe and a reference run are, free of any framework
- `torch_reference`     PyTorch executes the ONNX graph; its autograd and `torch.optim` give gradients and weights
- `goldens`             what `torch_reference` gave for the zoo, shipped for machines without PyTorch
- `finite_differences`  central differences of a float64 forward pass, for any model on any machine
- `compare`             the verdict
"""
