"""Published measurements beside what the model says: one module per system."""
