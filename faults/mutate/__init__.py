"""Mutation testing of synchronization: every mistake is found by proof and shown by execution, or changes nothing."""
