"""Shapes (N, H, W, C)."""

# Vectors and panels of every instruction set, whole and not, over few pixels.
CHANNELS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 31, 33, 48, 49, 64, 65, 72, 97, 100]
SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 6),
    (2, 1, 2, 2),
    (1, 2, 1, 3),
    (3, 3, 5, 4),
    (2, 7, 11, 13),  # few pixels
    (1, 8, 12, 20),  # 96 pixels, as many as sums in registers have with AVX-512
    (1, 97, 1, 20),
    (1, 16, 8, 5),  # 128, as many as with others
    (1, 3, 43, 5),
    (2, 15, 17, 10),
    (9, 2, 3, 70),  # many images, so blocks are larger
    (1, 4, 3, 129),  # blocks of 48 channels, one of 33
    (8, 1, 3, 130),  # of 80 and 50
    (1, 3, 3, 260),
]
# Pixels in segments, each with sums of its own: 2, 8 and 4 of them, and images in groups.
SEGMENTS = [(1, 32, 33, 5), (2, 64, 64, 3), (1, 47, 89, 40)]
GROUPS = (34, 64, 64, 33)
# Chunks of the gradient: 32 pixels at a time, and what is left of them.
PIXELS = [31, 32, 33, 63, 65, 513, 1025]
