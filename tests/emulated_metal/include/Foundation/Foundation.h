// GNUstep's Foundation, plus the few names that Apple's brings along and GNUstep's does not.
#pragma once
#include_next <Foundation/Foundation.h>

typedef double CFTimeInterval;
typedef NSString* NSErrorUserInfoKey;

#undef NS_UNAVAILABLE
#define NS_UNAVAILABLE __attribute__((unavailable))
#ifndef NS_RETURNS_INNER_POINTER
#define NS_RETURNS_INNER_POINTER
#endif
