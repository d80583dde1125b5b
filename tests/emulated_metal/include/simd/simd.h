// The one vector type that a data source's ranges are made of.
#pragma once

typedef float vector_float2 __attribute__((ext_vector_type(2)));
