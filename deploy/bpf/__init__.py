"""Builds the BPF programs of Equipoise, and fetches what that and their tests need."""
