"""What a cache policy does to a model, measured on the product's own forward path.

walk         a text fed to one or more caches, scored chunk by chunk
perplexity   how well the text is predicted, by position
divergence   how far the distributions are from those over an fp16 cache of everything
needle       whether a fact is found again, inside the window and outside
tune         bits by layer for a budget
checkpoint   a long walk kept on disk, to go on with later
"""
