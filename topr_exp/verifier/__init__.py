"""The generative verifier (TOPR, section 4.4): a model that writes whether somebody's solution is correct."""
