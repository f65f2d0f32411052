"""Published measurements beside what the model says: a module a system."""
