// Linkage macros of the emulated Metal headers.
#pragma once
#import <Foundation/Foundation.h>

#define MTL_EXPORT __attribute__((visibility("default")))
#define MTL_EXTERN extern "C" MTL_EXPORT
#define MTL_INLINE static inline
