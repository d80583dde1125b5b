# Compiles every *_simd.cpp once per instruction set of the processor. The rest of the code learns what there is from
# MPSGRAD_HAVE_<SET> and picks one set at start-up, so nothing outside these objects may use wider instructions.
set(architecture "${CMAKE_SYSTEM_PROCESSOR}")
if(APPLE AND CMAKE_OSX_ARCHITECTURES)
  set(architecture "${CMAKE_OSX_ARCHITECTURES}")
endif()
if(architecture MATCHES ";")
  message(FATAL_ERROR "build one architecture at a time, not ${architecture}")
endif()

if(architecture MATCHES "^(x86_64|AMD64|amd64)$")
  set(mpsgrad_isas scalar avx2 avx512)
  set(flags_scalar -march=x86-64-v2)
  set(flags_avx2 -march=x86-64-v3)
  set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
elseif(architecture MATCHES "^(arm64|aarch64)$")
  set(mpsgrad_isas neon)
  set(flags_neon)
else()
  set(mpsgrad_isas scalar)
  set(flags_scalar)
endif()

# Products and sums are fused. Clang must decide it by the expression, not by the loop around it, or equal expressions
# round differently; GCC knows only all or nothing.
set(flags_fused_gnu -ffp-contract=fast)
set(flags_fused_clang -ffp-contract=on)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(flags_fused ${flags_fused_gnu})
else()
  set(flags_fused ${flags_fused_clang})
endif()

foreach(isa IN LISTS mpsgrad_isas)
  string(TOUPPER ${isa} upper)
  target_compile_definitions(_core PRIVATE MPSGRAD_HAVE_${upper}=1)
  if(simd_sources)
    add_library(mpsgrad_simd_${isa} OBJECT ${simd_sources})
    target_link_libraries(mpsgrad_simd_${isa} PRIVATE mpsgrad_options)
    target_compile_definitions(mpsgrad_simd_${isa} PRIVATE MPSGRAD_ISA=${isa})
    # Not -ffast-math: NaN and infinities must come through. No exceptions: their tables are weak symbols.
    target_compile_options(mpsgrad_simd_${isa} PRIVATE ${flags_${isa}} ${flags_fused} -O3 -fno-math-errno
                           -fno-trapping-math -fno-exceptions)
    if(MPSGRAD_SANITIZE)  # loops that a sanitizer's checks keep from being vectorized are no mistake
      target_compile_options(mpsgrad_simd_${isa} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
    endif()
    target_sources(_core PRIVATE $<TARGET_OBJECTS:mpsgrad_simd_${isa}>)
  endif()
endforeach()
