//! Neural-network modules, losses, optimizers and checkpoints.
