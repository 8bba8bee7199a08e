"""Many ways to compile one model, evaluated side by side and kept by what they are."""
