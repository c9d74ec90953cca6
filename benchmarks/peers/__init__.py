"""The same split network trained by others' libraries, each in an environment of its own, side by side with ours."""
