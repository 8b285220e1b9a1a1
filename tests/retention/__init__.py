"""Tests of retention: until when trees are kept, and how they are swept."""
