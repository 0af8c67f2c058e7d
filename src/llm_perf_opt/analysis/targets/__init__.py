"""How far kernels are from the best that was measured for their shape on their device."""
